"""The toolkit beside other systems for test-time compute, on one server."""
