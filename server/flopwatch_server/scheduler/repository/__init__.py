"""What the scheduler told, in the database: nodes, and how the conversation with it goes."""
