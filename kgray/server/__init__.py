"""The memory over HTTP (`app.create_app`), with the page, and over MCP (`mcp`)."""
