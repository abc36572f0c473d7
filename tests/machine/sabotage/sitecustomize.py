"""Found by every interpreter that a stage starts: breaks the code under test if SABOTAGE names how."""

import os

if name := os.environ.get("SABOTAGE"):
    import sabotages

    sabotages.commit(name)
