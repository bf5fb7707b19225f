"""Small pictures are stored with the images of a batch side by side: [channel][row][column][image].

Rows of a few pixels do not fill vectors, images of a batch do. All threads work together on such pictures and
share their channels, hence sums over images need no private copies. Where large pictures (stored row by row)
and small ones meet, the large one is copied into the storage of the small ones, and back.
"""

from __future__ import annotations

from dataclasses import replace

from meta500.backends.generated.copies import copy_stage, renamed, renamed_loads
from meta500.backends.generated.images import find_batch
from meta500.backends.generated.ir import GRADIENT, VALUE, Program, Stage

# Pictures with fewer rows and columns are small.
FEWEST = 8


def with_batch_last(program: Program, lanes: int) -> tuple[Program, frozenset[str]]:
    """The program with copies where storages meet, and the tensors to be stored batch-last.

    Args:
        program: fused.
        lanes: numbers in the shortest vector to be filled; the batch must be a multiple.
    """
    batch = find_batch(program)
    if not batch.count or batch.count % lanes:
        return program, frozenset()
    handed = {*program.outputs.values(), *program.gradients.values(), *program.updates.values()}
    pictures = {n for n in batch.tensors if len(program.tensors[n].shape) == 4}
    small = {
        name
        for name in pictures - handed
        if program.tensors[name].role in (VALUE, GRADIENT) and max(program.tensors[name].shape[2:]) < FEWEST
    }
    large = {name for name in pictures if max(program.tensors[name].shape[2:]) >= FEWEST}
    # Means of large pictures, or factors for them: the large picture would be copied for a single pixel.
    for stage in program.stages:
        names = {*stage.reads(), *stage.writes()}
        if names & large:
            small -= {n for n in names & small if max(program.tensors[n].shape[2:]) == 1}
    program = replace(program, tensors=dict(program.tensors), stages=list(program.stages))
    copies = _Copies(program, small, pictures - small)
    copies.written_back()
    copies.read_over()
    copies.drop_unread(handed)
    return program, frozenset(copies.small)


class _Copies:
    """Inserts the copies between storages."""

    def __init__(self, program: Program, small: set[str], large: set[str]) -> None:
        self.program, self.small, self.large = program, small, large
        self.names: set[str] = set()
        self.written: dict[str, str] = {}

    def written_back(self) -> None:
        """Large pictures that only stages on small ones write are written small and copied back.

        Other stages that write large pictures read the small ones row by row.
        """
        program = self.program
        for name in sorted(self.large):
            writers = [s for s in program.stages if name in s.writes()]
            mixed = [s for s in writers if self._mixed(s)]
            if mixed and all(s in mixed or self._plain(s, name) for s in writers) and self._complete(name):
                inner = self._twin(name, "last", True)
                for stage in writers:
                    self._replace(stage, [renamed(stage, name, inner)])
                at = max(p for p, s in enumerate(program.stages) if inner in s.writes()) + 1
                program.stages.insert(at, self._copy(inner, name))
                self.written[name] = inner
                continue
            for stage in mixed:
                found: list[Stage] = []
                changed = stage
                for other in [n for n in stage.reads() if n in self.small and n not in stage.writes()]:
                    inner = self._twin(other, "rows", False)
                    found.append(self._copy(other, inner))
                    changed = renamed_loads(changed, other, inner)
                self._replace(stage, [*found, changed])

    def read_over(self) -> None:
        """Large pictures that stages on small ones read are copied before, if they were not written small."""
        twins = dict(self.written)
        for stage in list(self.program.stages):
            if stage.name in self.names:
                continue
            if self._mixed(stage):
                found: list[Stage] = []
                changed = stage
                for name in [n for n in stage.reads() if n in self.large and n not in stage.writes()]:
                    if name not in twins:
                        twins[name] = self._twin(name, "last", True)
                        found.append(self._copy(name, twins[name]))
                    changed = renamed_loads(changed, name, twins[name])
                self._replace(stage, [*found, changed])
            for name in stage.writes():
                # A copy from before is not what is there now.
                twins.pop(name, None)

    def drop_unread(self, handed: set[str]) -> None:
        """Copies that nobody reads."""
        read = {name for stage in self.program.stages for name in stage.reads()} | handed
        self.program.stages = [
            s for s in self.program.stages if s.name not in self.names or s.write.tensor in read
        ]

    def _plain(self, stage: Stage, name: str) -> bool:
        """Whether a stage reads no large picture but its own: it writes zeros, for example."""
        return self.large.isdisjoint(set(stage.reads()) - {name})

    def _complete(self, name: str) -> bool:
        """Whether nobody reads a tensor before the last stage that writes it, but these."""
        stages = self.program.stages
        last = max(p for p, s in enumerate(stages) if name in s.writes())
        return not any(name in s.reads() and name not in s.writes() for s in stages[:last])

    def _mixed(self, stage: Stage) -> bool:
        names = {*stage.reads(), *stage.writes()}
        return bool(names & self.small) and bool(names & self.large)

    def _copy(self, source: str, target: str) -> Stage:
        stage = copy_stage(self.program, source, target)
        self.names.add(stage.name)
        return stage

    def _twin(self, name: str, kind: str, small: bool) -> str:
        inner = self.program.unique(f"{name}.{kind}")
        tensor = self.program.tensors[name]
        role = tensor.role if tensor.role in (VALUE, GRADIENT) else VALUE
        self.program.tensors[inner] = replace(tensor, name=inner, role=role)
        (self.small if small else self.large).add(inner)
        return inner

    def _replace(self, stage: Stage, stages: list[Stage]) -> None:
        at = next(p for p, s in enumerate(self.program.stages) if s.name == stage.name)
        self.program.stages[at : at + 1] = stages
