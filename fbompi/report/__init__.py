"""`fbompi report`: runs as one HTML page that needs nothing but a browser."""
