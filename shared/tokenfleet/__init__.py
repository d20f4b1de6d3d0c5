"""The vocabulary every TokenFleet service shares."""
