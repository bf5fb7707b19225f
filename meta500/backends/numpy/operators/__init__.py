"""The numpy rules: forward functions and their vector-Jacobian products, one module per family."""

import importlib
import pkgutil

from meta500.backends.rules import RuleTable, loaded

rules = RuleTable("numpy")

# The modules of this folder register their rules in the table above, hence after it.
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
loaded(rules)
