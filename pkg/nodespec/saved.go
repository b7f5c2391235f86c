package nodespec

// SavedSuffix ends the names of the files with what etcd held before an upgrade.
const SavedSuffix = ".db"

// SavedData is the file, in the folder of what etcd kept, with what it held when a version of the
// system was upgraded.
func SavedData(version string) string { return version + SavedSuffix }
