"""`python -m evalgate`"""

from evalgate.cli import entry

if __name__ == "__main__":
    entry()
