"""HTTP: the application, routes, guards, pages, the server."""
