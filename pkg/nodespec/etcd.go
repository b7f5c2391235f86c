package nodespec

import "time"

// Input and output (JSON) of the orchestrator's commands for etcd.

// EtcdSnapshot is the output of `orchestrator stream-snapshot`: it describes the snapshot in the
// file that the command has written.
type EtcdSnapshot struct {
	Revision int64  `json:"revision"` // last revision in it
	Keys     int    `json:"keys"`
	Version  string `json:"version"` // version of etcd's storage format, "3.6.0"
}

// SendSnapshotRequest is the input of `orchestrator stream-snapshot`.
type SendSnapshotRequest struct {
	// name of a stored snapshot to send unchanged instead of the present data; empty: none
	Stored string `json:"stored"`
}

// TakeSnapshotRequest is the input of `orchestrator take-snapshot`.
type TakeSnapshotRequest struct {
	Most int `json:"most"` // retention
	// age public keys for the encryption; empty: not encrypted
	Recipients []string `json:"recipients"`
}

// EtcdTarget is the upload target of snapshots. It contains a secret, so a process gets it only on
// standard input.
type EtcdTarget struct {
	Place     string `json:"place"` // identifies the target in records, without secrets
	Endpoint  string `json:"endpoint"`
	Region    string `json:"region"`
	Bucket    string `json:"bucket"`
	Prefix    string `json:"prefix"`
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
	CA        string `json:"ca"` // PEM; empty: public CAs only
}

// UploadResult is the output of `orchestrator upload-snapshot`.
type UploadResult struct {
	Uploaded  StoredSnapshot `json:"uploaded"`  // without a name if there was none to upload
	Remaining int            `json:"remaining"` // number of snapshots still to be uploaded
}

// EtcdRestore is the input of `orchestrator restore-data`. The snapshot is the file in its
// arguments.
type EtcdRestore struct {
	By   string `json:"by"`   // the caller
	Undo bool   `json:"undo"` // instead of the file, the data replaced by the last restore
	// name of a stored snapshot to use instead of the file; empty: none
	Stored string `json:"stored"`
}

// StoredSnapshot is a snapshot on the machine's own disk.
type StoredSnapshot struct {
	Name     string    `json:"name"`
	At       time.Time `json:"at"`       // UTC, whole seconds
	Revision int64     `json:"revision"` // last revision in it
	Version  string    `json:"version"`  // version of etcd's storage format, "3.6.0"
	Size     int64     `json:"size"`     // bytes
	// Encrypted reports whether it is encrypted for the TakeSnapshotRequest.Recipients of that
	// time.
	Encrypted bool      `json:"encrypted"`
	Uploaded  time.Time `json:"uploaded"` // time of the upload, UTC; zero if not uploaded
}

// PendingRestoreFile, in paths.EtcdSnapshots, holds the EtcdRestored that the next start of
// orchestrator api performs.
const PendingRestoreFile = "pending-restore.json"

// LastRestoreFile, in paths.EtcdSnapshots, holds the EtcdRestored of the last performed restore.
const LastRestoreFile = "last-restore.json"

// ForceNewClusterFile, in paths.EtcdSnapshots, makes etcd start as the only member with its data.
// RejoinFile makes it drop its data first.
const (
	ForceNewClusterFile = "force-new-cluster"
	RejoinFile          = "rejoin"
)

// EtcdRestored is the output of restore-data: the restore that the next start of orchestrator api
// performs.
type EtcdRestored struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Undo     bool      `json:"undo"`
	Revision int64     `json:"revision"` // last revision of the snapshot
	Keys     int       `json:"keys"`
	// last revision of the replaced data; 0 if there was none or it was unreadable
	Replaced int64 `json:"replaced"`
}

// EtcdStatus is the output of `orchestrator data-status`. If etcd does not answer, it describes the
// data on the disk.
type EtcdStatus struct {
	Problem  string        `json:"problem"` // why etcd does not answer
	Member   string        `json:"member"`
	ID       string        `json:"id"`
	Leader   string        `json:"leader"` // ID of the leader; empty without a leader
	Version  string        `json:"version"`
	Size     int64         `json:"size"`  // of the database, bytes
	Used     int64         `json:"used"`  // bytes in use
	Quota    int64         `json:"quota"` // bytes
	Revision int64         `json:"revision"`
	Index    uint64        `json:"index"` // raft index
	Term     uint64        `json:"term"`
	Alarms   []string      `json:"alarms"`
	Restored *EtcdRestored `json:"restored"` // nil: never
	UndoSize int64         `json:"undoSize"` // size of the data for an undo, bytes
	Members  []EtcdMember  `json:"members"`  // by name; nil if etcd does not answer
}

// EtcdMember is an etcd member.
type EtcdMember struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"` // empty: added, but not started yet
	PeerURLs []string `json:"peerURLs"`
	Learner  bool     `json:"learner"` // it has no vote yet
	Problem  string   `json:"problem"` // why it does not answer; empty if it does
}

// CountVoters returns the number of voting members and how many of them answer.
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

// EtcdRecovered is the output of `orchestrator recover-data`.
type EtcdRecovered struct {
	RemovedMembers []string `json:"removedMembers"` // removed members
	// their IDs: a member that rejoins gets another ID
	IDs []string `json:"ids"`
}

// ReencryptRequest is the input of `orchestrator reencrypt-secrets`, which re-encrypts all Secrets
// that are not encrypted with the current key.
type ReencryptRequest struct {
	CountOnly bool `json:"count"` // changes nothing
}

// ReencryptResult is the output of `orchestrator reencrypt-secrets`.
type ReencryptResult struct {
	Secrets     int `json:"secrets"`     // number of all Secrets
	Reencrypted int `json:"reencrypted"` // number of Secrets with another key before
}

// EtcdDefragmented is the output of `orchestrator defragment-data`.
type EtcdDefragmented struct {
	Before int64 `json:"before"` // size of the database, bytes
	After  int64 `json:"after"`
	// revision of the preceding compaction; 0: none
	Compacted int64 `json:"compacted"`
}
