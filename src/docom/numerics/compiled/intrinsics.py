"""Three operations that are one machine instruction each and have no public name in numba."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,import-untyped"


@intrinsic
def pointer(typing_context, address):
    """An integer address as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def bit_pattern(typing_context, number):
    """The bits of a float32 or float64 as an unsigned integer of the same width."""
    pattern, bits = (types.uint32, 32) if number == types.float32 else (types.uint64, 64)

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(bits))

    return pattern(number), generate


@intrinsic
def lowest_bit(typing_context, mask):
    """The position of the lowest bit that is set in a nonzero uint64."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(mask), generate
