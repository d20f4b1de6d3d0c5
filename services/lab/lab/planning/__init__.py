"""What FleetMind's long loop is worth: its plans beside other ways to scale, on a coarse model of several sites."""
