import sys

from lpwm.cli import main

sys.exit(main())
