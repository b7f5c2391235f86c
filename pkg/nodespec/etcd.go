package nodespec

import "time"

// What the orchestrator's commands on etcd read and write, as JSON.

// EtcdSnapshot is what `orchestrator snapshot-data` writes: what lies in the file that it has
// filled.
type EtcdSnapshot struct {
	Revision int64  `json:"revision"` // the last one in it
	Keys     int    `json:"keys"`
	Version  string `json:"version"` // of etcd's form, "3.6.0"
}

// SendSnapshotRequest is what `orchestrator snapshot-data` reads.
type SendSnapshotRequest struct {
	// not what etcd holds, but the snapshot of this name that the machine has kept, as it lies
	// there; empty: none
	Kept string `json:"kept"`
}

// TakeSnapshotRequest is what `orchestrator keep-snapshot` reads.
type TakeSnapshotRequest struct {
	Most int `json:"most"` // how many are kept
	// whom it is encrypted for, public keys of age; empty: it is not
	Recipients []string `json:"recipients"`
}

// EtcdTarget is where snapshots are sent. It holds a secret, and is given to a process on its
// standard input only.
type EtcdTarget struct {
	Place     string `json:"place"` // what is remembered of it: where it leads, and no secret
	Endpoint  string `json:"endpoint"`
	Region    string `json:"region"`
	Bucket    string `json:"bucket"`
	Prefix    string `json:"prefix"`
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
	CA        string `json:"ca"` // PEM; empty: the public authorities only
}

// UploadResult is what `orchestrator send-snapshot` writes.
type UploadResult struct {
	Sent      StoredSnapshot `json:"sent"` // without a name: there was none to send
	Remaining int            `json:"left"` // how many are still to be sent
}

// EtcdRestore is what `orchestrator restore-data` reads. The snapshot is the file that it is
// started with.
type EtcdRestore struct {
	By   string `json:"by"`   // who has asked for it
	Undo bool   `json:"undo"` // not the file, but what the last one has replaced
	// not the file, but the snapshot of this name that the machine has kept; empty: none
	Kept string `json:"kept"`
}

// StoredSnapshot is a snapshot that the machine has taken by itself, and keeps.
type StoredSnapshot struct {
	Name     string    `json:"name"`
	At       time.Time `json:"at"`       // UTC, whole seconds
	Revision int64     `json:"revision"` // the last one in it
	Version  string    `json:"version"`  // of etcd's form, "3.6.0"
	Size     int64     `json:"size"`     // bytes
	// Encrypted says that it is for those who were TakeSnapshotRequest.Recipients then.
	Encrypted bool      `json:"encrypted"`
	Sent      time.Time `json:"sent"` // when the target has taken it, UTC; zero: it has not
}

// PendingRestoreFile, in paths.StoredSnapshot, holds the EtcdRestored that is put in place when orchestrator api
// starts next.
const PendingRestoreFile = "asked.json"

// LastRestoreFile, in paths.StoredSnapshot, holds the EtcdRestored that was put in place last.
const LastRestoreFile = "put-back.json"

// ForceNewClusterFile, in paths.StoredSnapshot, says that etcd is to start as the only member, with its data;
// RejoinFile, that they are to be dropped before.
const (
	ForceNewClusterFile = "alone"
	RejoinFile          = "rejoin"
)

// EtcdRestored is what restore-data writes: what orchestrator api will put in the place of the data
// when it starts next.
type EtcdRestored struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Undo     bool      `json:"undo"`
	Revision int64     `json:"revision"` // the last one of the snapshot
	Keys     int       `json:"keys"`
	// the last one of what was there before; 0: nothing, or it could not be read
	Replaced int64 `json:"replaced"`
}

// EtcdStatus is what `orchestrator data-status` writes. Where etcd does not answer, it is about
// what lies on the disk.
type EtcdStatus struct {
	Problem  string        `json:"problem"` // why etcd does not answer
	Member   string        `json:"member"`
	ID       string        `json:"id"`
	Leader   string        `json:"leader"` // its id; empty: there is none
	Version  string        `json:"version"`
	Size     int64         `json:"size"`  // of the database, bytes
	Used     int64         `json:"used"`  // of it in use, bytes
	Quota    int64         `json:"quota"` // bytes
	Revision int64         `json:"revision"`
	Index    uint64        `json:"index"` // raft's
	Term     uint64        `json:"term"`
	Alarms   []string      `json:"alarms"`
	Restored *EtcdRestored `json:"restored"` // nil: never
	UndoSize int64         `json:"undoSize"` // of what can be put back, bytes
	Members  []EtcdMember  `json:"members"`  // by name; nil where etcd does not answer
}

// EtcdMember is one of the machines that hold the data.
type EtcdMember struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"` // empty: it was added, and has not started yet
	PeerURLs []string `json:"peerURLs"`
	Learner  bool     `json:"learner"` // it has no vote yet
	Problem  string   `json:"problem"` // why it does not answer; empty: it does
}

// CountVoters says how many members have a vote, and how many of those answer.
func CountVoters(all []EtcdMember) (voters, answering int) {
	for _, m := range all {
		if m.Learner {
			continue
		}
		voters++
		if m.Problem == "" {
			answering++
		}
	}
	return voters, answering
}

// EtcdRecovered is what `orchestrator recover-data` writes.
type EtcdRecovered struct {
	Dropped []string `json:"dropped"` // the members that are left out from now on
	IDs     []string `json:"ids"`     // and their numbers: one that joins anew has another one
}

// ReencryptRequest asks `orchestrator reseal-secrets` to write all Secrets again that are not sealed by
// the key that seals.
type ReencryptRequest struct {
	Count bool `json:"count"` // change nothing, only count
}

// ReencryptResult is what it writes.
type ReencryptResult struct {
	Secrets     int `json:"secrets"`  // all that there are
	Reencrypted int `json:"resealed"` // of them, those that were not sealed by it
}

// EtcdDefragmented is what `orchestrator defragment-data` writes.
type EtcdDefragmented struct {
	Before int64 `json:"before"` // size of the database, bytes
	After  int64 `json:"after"`
	// the revision up to which old ones were dropped first; 0: none
	Compacted int64 `json:"compacted"`
}
