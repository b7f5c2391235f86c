package nodespec

// SavepointSuffix is the suffix of savepoint files.
const SavepointSuffix = ".db"

// SavepointFile returns the name of a file in paths.EtcdSnapshots. It holds the savepoint that this
// version of the system has taken before its upgrade to another version.
func SavepointFile(version string) string { return version + SavepointSuffix }
