"""Found by every interpreter that a stage starts: breaks the code under test if DFQ_SABOTAGE names how."""

import os

if name := os.environ.get("DFQ_SABOTAGE"):
    import sabotages

    sabotages.commit(name)
