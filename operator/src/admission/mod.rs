//! Admission, pure: from a request as the API server sent it to a JSON patch that only adds.
