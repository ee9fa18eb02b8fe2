"""Jobs: handed in, asked after, followed, and what they leave."""
