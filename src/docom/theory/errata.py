"""The paper's slips, as data. Formulas here are the corrected ones unless `printed=True` is asked for.

`kind` says how much it matters: `serious` changes a claim, `formula` a number, `harmless` nothing that
follows, `experiment` concerns the description of the experiments.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["serious", "formula", "harmless", "experiment"]


@dataclass(frozen=True)
class Erratum:
    """One slip: where it is, what is printed, what it should be, and what follows from it."""

    id: str
    kind: Kind
    where: str
    printed: str
    corrected: str
    effect: str

    def to_dict(self) -> dict[str, str]:
        """Plain data."""
        return asdict(self)


ERRATA: tuple[Erratum, ...] = (
    Erratum(
        "schedules-not-admissible",
        "serious",
        "below th:main, eq:grdFbound, eq:grdFbound_2, app:step_twist",
        "schedules A, B and C satisfy the theorem's step conditions for large T",
        "C_gbar >= 96 L^2 n/(rho gamma), so eta <= sqrt(beta rho gamma/768)/L; A exceeds it by "
        "sqrt(768 n/(rho gamma)) "
        "and C by sqrt(768/(rho gamma)) at every T, B unless n >= (768/(rho gamma))^3",
        "the stated rates do not follow from the theorem; eta = n^(1/6) sqrt(rho gamma/800)/(L "
        "T^(1/3)) is admissible "
        "for large T and loses the linear speed-up of the initial-gap term",
    ),
    Erratum(
        "pl-schedule",
        "serious",
        "below cor:pl, app:largeT",
        "eta = beta = log T/T (main text), log T/(mu T) (appendix), giving O(log T/T)",
        "log T/T contracts like T^-min(mu, 1/2); log T/(mu T) like T^-min(1, 1/(2 mu)), with noise "
        "1/mu^2, not 1/mu; "
        "as beta has no dimension, eta = log T/(mu T) with beta = 2 log T/T gives 1/T and 1/mu",
        "the rate holds for mu <= 1/2 only, unless beta is chosen apart from eta",
    ),
    Erratum(
        "beta-one-start",
        "serious",
        "app:betaequalone, below lem:combined",
        "E|G_o^0|^2 = n sigma^2, and no initial error of the replicas",
        "heterogeneous gradients disagree at the start, and G^0 - hat G^0 = G^0, Theta^0 - eta G^0 - "
        "hat Theta^0 = -eta G^0: "
        "the initial potential is at most (a + b + c eta^2) n Gbar0",
        "the bound gains the term 6 L^2 (a + b + c eta^2) Gbar0/(rho_bar gamma T)",
    ),
    Erratum(
        "beta-one-weight-c",
        "formula",
        "lem:combined, app:pf_combined",
        "c = 24 omega_bar^2/(rho delta (1 - gamma))",
        "c = 24 gamma omega_bar^2/(rho delta (1 - gamma)); without gamma c breaks its own upper bound",
        "the printed potential does not contract as claimed; with the factor it does, and the last "
        "terms of C_sigma^NM and "
        "C_grad^NM gain a factor gamma",
    ),
    Erratum(
        "C_sigma-third-term",
        "formula",
        "eq:constS, end of app:wholesys",
        "6 L^2 n rho^4 delta eta^2/(25 omega_bar^2 gamma)",
        "31 n b/delta bounded by S4: 12.4 L^2 n eta^2/(gamma^3 rho (omega_bar^2 + rho^2/8))",
        "under 2%; the printed C_sigma is slightly too small to be a bound",
    ),
    Erratum(
        "rate-B-last-term",
        "formula",
        "eq:grdFbound_2",
        "n^(5/3) sigma^2/(delta^3 rho^6 T^(4/3))",
        "n^(1/3) sigma^2/(delta^3 rho^6 T^(4/3))",
        "the alternative rate is better than printed",
    ),
    Erratum(
        "n-against-T",
        "formula",
        "around eq:grdFbound_2",
        "n <= O(L^(3/4) T^(1/2)) and n <= O(L^(3/2) T)",
        "n <= O(T^(1/2)) and n <= O(T): the powers of L cancel",
        "none on the rates",
    ),
    Erratum(
        "transient-time",
        "formula",
        "app:step_twist",
        "second term n^1.5/(delta^1.5 rho^6); L Delta0/T^(2/3) is not compared",
        "n^1.5/(delta^4.5 rho^9); L Delta0/T^(2/3) has no 1/n and never falls below sigma^2/(n T^(2/3)) by itself",
        "a longer transient; linear speed-up only where L Delta0 <= sigma^2/n",
    ),
    Erratum(
        "choco-G",
        "formula",
        "tab:compare, CHOCO-SGD",
        "G/(delta rho^2 eps^3) with G = sup E|grad|^2",
        "the numerator is a norm, sqrt(G): only then do both terms of the row have the same dimension",
        "the row scales wrongly with the gradient's size",
    ),
    Erratum(
        "docom-row-initial-gap",
        "formula",
        "tab:compare, DoCoM",
        "no term for L Delta0",
        "(L Delta0)^1.5/(n eps^3), from the first term of eq:grdFbound; it is of the leading order",
        "matters where sigma^2 < L Delta0",
    ),
    Erratum(
        "gamma-inf-power",
        "harmless",
        "lem:wholesys",
        "sqrt(1 - delta/(8 omega_bar^2))",
        "sqrt(1 - delta/(8 omega_bar)), from gamma <= delta/(8 omega_bar); the beta = 1 lemma has it right",
        "the printed limit is larger, by under 2% for omega_bar in [1, 2]",
    ),
    Erratum(
        "pl-proof-four",
        "harmless",
        "proof of cor:pl",
        "eta^2 <= beta_bar n/(4 C_gbar)",
        "8 in place of 4, as the corollary's own assumption has it",
        "none on the statement",
    ),
    Erratum(
        "mean-direction",
        "harmless",
        "lem:theta_1stepnew, lem:vt_bound, C_gbar",
        "|(I + gamma(W - I)) G| <= (1 - rho gamma)|G|, so (1 - rho gamma)^2 before n|g-bar|^2",
        "the mean is not contracted: the factor before n|g-bar|^2 is 1",
        "none: C_gbar prints 96 where the weights give 96/5, which covers it",
    ),
    Erratum(
        "S3-entry",
        "harmless",
        "eq:whole_step_3rd and the collected minimum",
        "gamma^2/(1 - gamma) <= delta^2/(600 omega_bar^2) is left out; a comma is missing between two entries",
        "the entry follows from c <= 2 delta L^2/(25 rho gamma)",
        "none, since rho <= omega_bar makes another entry smaller",
    ),
    Erratum(
        "beta-one-dimensions",
        "harmless",
        "lemma:g_cons, lem:gt, lemma:theta_comm, lem:combined",
        "L^4, rho/4 and rho^2 beside terms with L^2; a condition eta <= .../(130 L^2 omega_bar^1.5)",
        "L^2, L^2 rho/4, L^2 rho^2; eta <= .../(183 L omega_bar^1.5), two halves of one bound adding to 1, not 3/2",
        "none after correction: other conditions are smaller",
    ),
    Erratum(
        "wrong-letters",
        "harmless",
        "lem:gt, app:gtghat_new, lem:combined",
        "Theta - eta G - hat G; C_sigma for C_sigma^NM",
        "Theta - eta G - hat Theta; C_sigma^NM",
        "none",
    ),
    Erratum(
        "assumption-wording",
        "harmless",
        "ass:mix, below it, app:wholesys, lem:thetahat_new",
        "U with orthogonal columns; 1 the unique eigenvector; omega_bar in (0, 2]; (1 - delta) in one"
        " version of a condition",
        "orthonormal columns; unique to eigenvalue 1; the simplified steps assume omega_bar in [1, "
        "2]; drop (1 - delta)",
        "for omega_bar < 1 use omega_bar = 1, which is a valid bound too",
    ),
    Erratum(
        "detag-rounds",
        "experiment",
        "tab:comp-compl",
        "R messages for DeTAG, 2 for the other trackers",
        "R rounds of two vectors are 2R vectors in the unit of the other rows",
        "DeTAG looks half as expensive as it is",
    ),
    Erratum(
        "quantiser-levels",
        "experiment",
        "app:subsec:rescale",
        "2^b levels of size 2^-b coded in b bits",
        "there are 2^b + 1 values from 0 to 1; b bits hold them with s = 2^b - 1",
        "delta changes slightly",
    ),
    Erratum(
        "sigmoid-labels",
        "experiment",
        "eq:syn_obj",
        "labels in {0, 1}",
        "labels in {-1, +1}: with 0 the other classes contribute a constant without gradient",
        "another objective; predictions take the smallest score",
    ),
    Erratum(
        "dimensions",
        "experiment",
        "experiments on FEMNIST and synthetic data",
        "d = 60850 for LeNet-5, d = 5000 for the synthetic model",
        "66126 with 62 classes on 1 x 32 x 32 images; 5005 with the bias feature",
        "bits and delta computed from d",
    ),
)
