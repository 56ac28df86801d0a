"""What is asked: suites, haystacks, needle families, placement and scoring; nothing here knows a model."""
