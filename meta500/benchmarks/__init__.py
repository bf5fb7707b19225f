"""What a user runs: layers, networks, training and comparisons, each writing result rows."""
