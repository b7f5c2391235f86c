package activeconfig

import (
	"context"
	"time"
)

// State describes the configuration: topic "configuration". RPC Config.Get returns the documents.
type State struct {
	Present bool      `json:"present"`
	Machine string    `json:"machine,omitempty"` // machine name
	Role    string    `json:"role,omitempty"`
	Cluster string    `json:"cluster,omitempty"`
	Applied time.Time `json:"applied,omitzero"`
	// STATE, image, API or medium, with the caller or device
	Source string `json:"source,omitempty"`
	// why the stored configuration is unusable
	Problem string `json:"problem,omitempty"`
	// time of the staged configuration; zero if none
	Staged time.Time `json:"staged,omitzero"`
	// names of the encryption keys on a control-plane machine; the first key encrypts
	EncryptionKeys []string `json:"encryptionKeys,omitempty"`
	// the key manager of Secrets; absent without one
	KMS *KMSState `json:"kms,omitempty"`
	// why it is unknown whether a configuration is staged: STATE does not answer
	StagedUnknown string `json:"stagedUnknown,omitempty"`
	// services that do not run with this configuration yet, or why they are unknown
	WaitingFor []string `json:"waitingFor,omitempty"`
	// when the previous configuration becomes active again unless a client confirms the present
	// one; zero if it is not on trial
	TrialDeadline time.Time `json:"trialDeadline,omitzero"`
}

// KMSState describes the key manager of Secrets. If the key manager does not encrypt Secrets, the
// first encryption key encrypts them.
type KMSState struct {
	Name     string `json:"name"` // of the key
	Encrypts bool   `json:"encrypts"`
}

// State returns the state of the configuration. Its reads of STATE have a deadline.
func (m *Manager) State(ctx context.Context) State {
	now := m.Current()
	s := State{Problem: now.Problem}
	var err error
	if s.Staged, err = m.Staged(ctx); err != nil {
		s.StagedUnknown = err.Error()
	}
	if now.Config == nil {
		return s
	}
	s.Present, s.Source, s.Machine, s.Role = true, now.Source, now.MachineName(), string(now.Config.Machine.Spec.Role)
	s.Applied, s.TrialDeadline, s.Problem = now.At, now.TrialEnd, ""
	if now.Config.Cluster == nil {
		return s
	}
	s.Cluster = now.Config.Cluster.Metadata.Name
	if !m.deps.InMemory {
		// the list has the error as an item, so a client that waits for an empty list continues to
		// wait
		if s.WaitingFor, err = m.deps.WaitingServices(ctx, now.Config); err != nil {
			s.WaitingFor = []string{err.Error()}
		}
	}
	for _, k := range now.Config.Cluster.Spec.EncryptionKeys() {
		s.EncryptionKeys = append(s.EncryptionKeys, k.Name())
	}
	if kms := now.Config.Cluster.Spec.Kubernetes.APIServer.KMS; kms != nil {
		s.KMS = &KMSState{Name: kms.Name(), Encrypts: kms.Encrypt}
	}
	return s
}
