"""Why a request went where it went: found in the recorded events, worked out, and shown."""
