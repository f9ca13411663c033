"""Local steps between messages: what each method reaches with how many bytes, on texts that every machine has."""
