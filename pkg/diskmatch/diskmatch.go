// Package diskmatch is what machined asks when a configuration selects a disk by an expression
// (`orchestrator match-disks`), and what it is told. The compiler of expressions comes with
// Kubernetes; PID 1 does not carry it (docs/decisions/0016-disk-expressions.md).
package diskmatch

// DiskMatchRequest is an expression, and the disks to ask it of.
type DiskMatchRequest struct {
	Expression string          `json:"expression"`
	Disks      []DiskMatchDisk `json:"disks"`
}

// DiskMatchDisk is what an expression can ask for, each field by its JSON name: disk.size.
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

// DiskMatchResult is what came of it.
type DiskMatchResult struct {
	// why it is not an expression about a disk; empty if it is
	Problem string   `json:"problem,omitempty"`
	Matches []string `json:"matches,omitempty"` // the paths of the disks of which it is true
}
