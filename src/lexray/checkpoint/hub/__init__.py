"""The Hub: repositories, files read whole, byte ranges over HTTP."""
