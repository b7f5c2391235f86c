package nodespec

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/egress"
)

// Input and output (JSON) of the orchestrator's commands for etcd that are no messages of the API.
// The names of stored files and fields are those of version 0.1.0, which reads them after a
// rollback (docs/decisions/0092-stored-formats.md).

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
	// how the store is reached, with the password of a proxy
	Egress egress.Config `json:"egress,omitzero"`
}

// UploadResult is the output of `orchestrator upload-snapshot`.
type UploadResult struct {
	Uploaded  string `json:"uploaded"`  // its name; empty if there was none to upload
	Remaining int    `json:"remaining"` // number of snapshots still to be uploaded
}

// EtcdRestore is the input of `orchestrator restore-data`. The snapshot is the file in its
// arguments.
type EtcdRestore struct {
	By   string `json:"by"`   // the caller
	Undo bool   `json:"undo"` // instead of the file, the data replaced by the last restore
	// name of a stored snapshot to use instead of the file; empty: none
	Stored string `json:"stored"`
}

// PendingRestoreFile, in paths.EtcdSnapshots, holds the EtcdRestored that the next start of
// orchestrator api performs.
const PendingRestoreFile = "asked.json"

// LastRestoreFile, in paths.EtcdSnapshots, holds the EtcdRestored of the last performed restore.
const LastRestoreFile = "put-back.json"

// ForceNewClusterFile, in paths.EtcdSnapshots, makes etcd start as the only member with its data.
// RejoinFile makes it drop its data first.
const (
	ForceNewClusterFile = "alone"
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

// Message returns the message of the API about the restore.
func (r EtcdRestored) Message() *api.EtcdRestored {
	return &api.EtcdRestored{At: timestamppb.New(r.At), By: r.By, Revision: r.Revision, Keys: int64(r.Keys), Replaced: r.Replaced, Undo: r.Undo}
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
