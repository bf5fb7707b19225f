"""The files beside the layer-4 code: what is generated for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meta500.backends.generated.exaslang.variant import CUDA, Variant

# Folder in which the generator writes C++, and the name of its program.
GENERATED, PROGRAM = "generated", "exastencils"
HEADER = "meta500_data.h"


@dataclass(frozen=True)
class Platform:
    """The machine that runs the program.

    Attributes:
        compiler: "GCC" and its like, as the generator calls them.
        version: of the compiler.
        simd: instruction set of the vectors, as the generator calls it.
        capability: of the graphics processor.
    """

    compiler: str = "GCC"
    version: tuple[int, int] = (12, 2)
    simd: str = "AVX2"
    capability: tuple[int, int] = (8, 0)


def knowledge(variant: Variant, levels: tuple[int, int]) -> str:
    """How the code is generated.

    Args:
        variant: what runs it.
        levels: the coarsest and the finest.
    """
    columns, rows = variant.blocks
    keys: dict[str, object] = {
        "dimensionality": 2,
        "minLevel": levels[0],
        "maxLevel": levels[1],
        "domain_onlyRectangular": True,
        "domain_rect_generate": True,
        "domain_rect_numBlocks_x": columns,
        "domain_rect_numBlocks_y": rows,
        "domain_rect_numBlocks_z": 1,
        "domain_rect_numFragsPerBlock_x": 1,
        "domain_rect_numFragsPerBlock_y": 1,
        "domain_rect_numFragsPerBlock_z": 1,
        "useDblPrecision": variant.double,
        # Both default to true.
        "mpi_enabled": variant.mpi,
        "omp_parallelizeLoopOverFragments": False,
        "mpi_numThreads": variant.processes,
        "omp_enabled": variant.openmp,
        "omp_numThreads": variant.threads,
        "omp_parallelizeLoopOverDimensions": variant.openmp,
        "omp_minWorkItemsPerThread": 1,
    }
    if variant.shared_regions:
        # The pragmas of parallel regions must meet the loop over rows, not one around it.
        keys["experimental_resolveUnreqFragmentLoops"] = True
    if variant.parallel == CUDA:
        keys |= {"cuda_enabled": True, "cuda_preferredExecution": '"Device"'}
    if variant.optimize:
        keys |= {
            "opt_vectorize": True,
            "opt_useAddressPrecalc": True,
            "opt_conventionalCSE": True,
            "data_alignFieldPointers": True,
        }
        if variant.parallel == CUDA:
            # Pinned memory can't be aligned.
            keys["cuda_usePinnedHostMemory"] = False
    return _assignments(keys)


def platform(variant: Variant, machine: Platform) -> str:
    """For which machine it is generated."""
    keys: dict[str, object] = {
        "targetOS": '"Linux"',
        "targetHardware": '"GPU"' if variant.parallel == CUDA else '"CPU"',
        "targetCompiler": f'"{machine.compiler}"',
        "targetCompilerVersion": machine.version[0],
        "targetCompilerVersionMinor": machine.version[1],
        "simd_instructionSet": f'"{machine.simd}"',
    }
    if variant.parallel == CUDA:
        keys |= {
            "hw_cuda_capability": machine.capability[0],
            "hw_cuda_capabilityMinor": machine.capability[1],
            "hw_gpu_numDevices": 1,
        }
    return _assignments(keys)


def settings(name: str) -> str:
    """Where the files are.

    Args:
        name: of the layer-4 file, without its ending.
    """
    keys: dict[str, object] = {
        "user": '"Guest"',
        "configName": f'"{name}"',
        "basePathPrefix": '"."',
        "l4file": f'"{name}.exa4"',
        "debugL4File": f'"{name}_debug.exa4"',
        "outputPath": f'"{GENERATED}/"',
        "produceHtmlLog": False,
        "timeStrategies": False,
        "buildfileGenerators": '{ "MakefileGenerator" }',
    }
    text = _assignments(keys)
    return text + f'additionalIncludes += {{ "{HEADER}" }}\npathsInc += {{ ".." }}\n'


def _assignments(keys: Mapping[str, object]) -> str:
    width = max(map(len, keys))
    return "".join(f"{key:{width}} = {_value(value)}\n" for key, value in keys.items())


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
