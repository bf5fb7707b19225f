"""Names of the network as identifiers of the language."""

from __future__ import annotations

import re

from meta500.backends.generated.exaslang.tree import RESERVED

# Words of C++, into which variables go under their own names.
_CPP = """
    alignas alignof and_eq asm auto bitand bitor bool break case catch char class compl const const_cast
    constexpr continue decltype default delete do double dynamic_cast else enum explicit extern float
    for friend goto if inline int long mutable namespace new noexcept not_eq nullptr operator or_eq
    private protected public register reinterpret_cast return short signed sizeof static static_assert
    static_cast std struct switch template this thread_local throw try typedef typeid typename union
    unsigned using virtual void volatile wchar_t while xor xor_eq
""".split()  # noqa: SIM905
# Names that programs have beside those of the network, or that the generator gives.
_OWN = """
    InitWeights LoadBatch LoadValidation ForwardPass LossFunction BackwardPass Optimization SaveWeights
    Application correction epoch_loss validation_loss training meta500 sample vf_cellCenter_x
    vf_cellCenter_y fragmentIdx mpiRank mpiSize mpiCommunicator argc argv slot initGlobals initDomain
    initFieldsWithZero initGeometry startTimer stopTimer printAllTimers destroyGlobals
""".split()  # noqa: SIM905
_OWN_NUMBERED = re.compile(
    r"(sum|largest|term|chosen|batch|channel|channel_in|element|step|layout)(_\d+)*(_at)?"
    r"|(fielddata|timer|exch|neighbor|meta500|setting|power|iteration|buffer)_.*"
)


class Names:
    """Gives out identifiers, each once; no two differ in their case alone."""

    def __init__(self) -> None:
        self._taken = {word.lower() for word in (*RESERVED, *_CPP, *_OWN)}

    def new(self, text: str) -> str:
        """An identifier like ``text``, which the network chose."""
        base = re.sub(r"[\W_]+", "_", text.replace("grad/", "d_", 1), flags=re.ASCII).strip("_") or "value"
        if base[0].isdigit() or _OWN_NUMBERED.fullmatch(base.lower()):
            base = f"v_{base}"
        return self.own(base)

    def own(self, base: str) -> str:
        """The identifier ``base``, numbered if it is taken."""
        name, number = base, 2
        while name.lower() in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name.lower())
        return name
