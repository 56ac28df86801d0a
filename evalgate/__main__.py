"""`python -m evalgate`"""

from evalgate.cli import main

if __name__ == "__main__":
    main()
