"""The parts of a screen, one a file. They post messages upwards and never reach into their neighbours."""
