"""What a record would have been with other policies: campaigns played in a world that is made of it."""
