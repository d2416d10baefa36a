"""Opens, watches and closes the process. Start reading at `runtime.Runtime`."""
