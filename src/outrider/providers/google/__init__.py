"""Google Gemini client (generateContent) for the developer API and Vertex."""
