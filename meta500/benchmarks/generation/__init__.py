"""``meta500 generate``: the stages of generated code as text, and programs that train without Python."""

from meta500.benchmarks.generation.config import Config, read_config
from meta500.benchmarks.generation.folder import Folder
from meta500.benchmarks.generation.program import write_program
from meta500.benchmarks.generation.shuffle import sample_order
from meta500.benchmarks.generation.subject import Source, Subject, load_subject
from meta500.benchmarks.generation.weights import import_weights, load_weights, save_weights

__all__ = [
    "Config",
    "Folder",
    "Source",
    "Subject",
    "import_weights",
    "load_subject",
    "load_weights",
    "read_config",
    "sample_order",
    "save_weights",
    "write_program",
]
