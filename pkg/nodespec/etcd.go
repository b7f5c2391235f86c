package nodespec

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/egress"
)

// This file defines the input and output (JSON) of the orchestrator's commands for etcd, except for
// the messages of the API. Stored files and fields have the names of version 0.1.0, because that
// version reads them after a rollback (docs/decisions/0092-stored-formats.md).

// TakeSnapshotRequest is the input of `orchestrator take-snapshot`.
type TakeSnapshotRequest struct {
	Most int `json:"most"` // number of stored snapshots to retain
	// age public keys for the encryption; empty for no encryption
	Recipients []string `json:"recipients"`
}

// EtcdTarget is the S3 target to which snapshots are uploaded. It contains a secret, so a process
// gets it only on standard input.
type EtcdTarget struct {
	Place     string `json:"place"` // name of the target in records; it contains no secret
	Endpoint  string `json:"endpoint"`
	Region    string `json:"region"`
	Bucket    string `json:"bucket"`
	Prefix    string `json:"prefix"`
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
	CA        string `json:"ca"` // CA of the server, PEM; empty for the public CAs
	// how to reach the server; contains the password of a proxy
	Egress egress.Config `json:"egress,omitzero"`
}

// UploadResult is the output of `orchestrator upload-snapshot`.
type UploadResult struct {
	Uploaded  string `json:"uploaded"`  // name of the snapshot; empty if none was left to upload
	Remaining int    `json:"remaining"` // number of snapshots that are still not uploaded
}

// EtcdRestore is the input of `orchestrator restore-data`. By default, the command restores the
// snapshot in its file argument.
type EtcdRestore struct {
	By   string `json:"by"`   // the caller
	Undo bool   `json:"undo"` // restore the data that the last restore replaced
	// name of a stored snapshot to restore in place of the file; empty for the file
	Stored string `json:"stored"`
}

// PendingRestoreFile is a file in paths.EtcdSnapshots with the EtcdRestored of a requested restore.
// The next start of orchestrator api performs the restore.
const PendingRestoreFile = "asked.json"

// LastRestoreFile is a file in paths.EtcdSnapshots with the EtcdRestored of the last restore that
// was performed.
const LastRestoreFile = "put-back.json"

// Marker files in paths.EtcdSnapshots. With ForceNewClusterFile, etcd starts with its data as the
// only member of a new cluster. With RejoinFile, etcd drops its data before it starts.
const (
	ForceNewClusterFile = "alone"
	RejoinFile          = "rejoin"
)

// EtcdRestored is the output of `orchestrator restore-data`. It describes the restore that the next
// start of orchestrator api performs.
type EtcdRestored struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Undo     bool      `json:"undo"`
	Revision int64     `json:"revision"` // last revision of the snapshot
	Keys     int       `json:"keys"`
	// last revision of the replaced data; 0 without readable data
	Replaced int64 `json:"replaced"`
}

// Message returns the message of the API for the restore.
func (r EtcdRestored) Message() *api.EtcdRestored {
	return &api.EtcdRestored{At: timestamppb.New(r.At), By: r.By, Revision: r.Revision, Keys: int64(r.Keys), Replaced: r.Replaced, Undo: r.Undo}
}

// EtcdRecovered is the output of `orchestrator recover-data`.
type EtcdRecovered struct {
	RemovedMembers []string `json:"removedMembers"` // names of the removed members
	// IDs of the removed members; a member that rejoins gets another ID
	IDs []string `json:"ids"`
}

// ReencryptRequest is the input of `orchestrator reencrypt-secrets`. The command re-encrypts each
// Secret that has another key than the current encryption key.
type ReencryptRequest struct {
	CountOnly bool `json:"count"` // count the Secrets, and change none
}

// ReencryptResult is the output of `orchestrator reencrypt-secrets`.
type ReencryptResult struct {
	Secrets     int `json:"secrets"`     // number of all Secrets
	Reencrypted int `json:"reencrypted"` // number of Secrets that had another key
}
