"""The torch rules: differentiable forward functions, one module per family."""

import importlib
import pkgutil

from meta500.backends.rules import RuleTable, loaded

rules = RuleTable("torch")

# The modules of this folder register their rules in the table above, hence after it.
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
loaded(rules)
