"""Files and folders: writes that survive a power cut, locks, bounded reads, links that lead outside."""
