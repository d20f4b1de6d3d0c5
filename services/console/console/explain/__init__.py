"""Why a request went where it went: worked out from the recorded events, and shown."""
