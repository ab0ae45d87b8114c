"""A server that answers agents over the Model Context Protocol (MCP), and only reads."""
