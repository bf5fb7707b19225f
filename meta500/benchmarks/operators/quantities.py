"""Names of the phases, quantities and notes in the rows of a Level 0 run."""

# Quantities.
VERDICT, GRADIENT, SKIPPED = "verdict", "gradient_error", "skipped"
# Phases.
CHECK, GRADIENT_CHECK = "conformance", "backward"
# The note of a right case that the backend ran through its host fallback.
HOST_NOTE = "on the host"
