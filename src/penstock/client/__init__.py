"""The Python client, blocking and for asyncio."""
