"""Google's wire format for Gemini: generateContent, on the developer API and on Vertex."""
