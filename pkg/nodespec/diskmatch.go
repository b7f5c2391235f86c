package nodespec

// DiskMatchRequest is the input of `orchestrator match-disks`, which evaluates an expression for
// each disk.
type DiskMatchRequest struct {
	Expression string          `json:"expression"`
	Disks      []DiskMatchDisk `json:"disks"`
}

// DiskMatchDisk is the variable disk of an expression. The JSON names are the names of the fields
// in the expression, for example disk.size.
type DiskMatchDisk struct {
	Path       string `json:"path"`
	Size       int64  `json:"size"`       // bytes
	SectorSize int64  `json:"sectorSize"` // bytes
	Model      string `json:"model"`
	Serial     string `json:"serial"`
	WWID       string `json:"wwid"`
	Bus        string `json:"bus"`
	Transport  string `json:"transport"`
	Rotational bool   `json:"rotational"`
	ReadOnly   bool   `json:"readOnly"`
}

// DiskMatchResult is the output of `orchestrator match-disks`.
type DiskMatchResult struct {
	// error of the expression; empty for a valid expression
	Problem string   `json:"problem,omitempty"`
	Matches []string `json:"matches,omitempty"` // paths of the matching disks
}
