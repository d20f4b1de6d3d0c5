"""The figures that TokenFleet promises itself in the simulator, and whether it keeps them."""
