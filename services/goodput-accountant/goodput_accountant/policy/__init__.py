"""What a request was worth: accounting, reports and windows, as plain functions of plain values."""
