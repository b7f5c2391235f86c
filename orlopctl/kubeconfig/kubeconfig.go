// Package kubeconfig edits the configuration files of kubectl. It edits the nodes of the YAML text,
// so that comments, order and unknown fields do not change.
package kubeconfig

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// Path returns the default file of kubectl: the first file of $KUBECONFIG, or
// ~/.kube/config.
func Path() (string, error) {
	for _, path := range filepath.SplitList(os.Getenv("KUBECONFIG")) {
		if path != "" {
			return path, nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: cannot find your home directory: %w; use --out", err)
	}
	return filepath.Join(home, ".kube", "config"), nil
}

// MergeFile merges a kubeconfig into a file, and returns the current context. The file may be
// missing. If the file has another cluster with the same name, MergeFile returns an error unless
// force is set: users of the old cluster would send their credentials to the new cluster.
func MergeFile(path string, fresh []byte, force bool) (current string, err error) {
	err = changeFile(path, func(old []byte) ([]byte, error) {
		if name := otherCluster(old, fresh); name != "" && !force {
			return nil, &exit.Error{
				Code: exit.Usage, Err: fmt.Errorf("kubeconfig %s: cannot merge: it contains another cluster with the name %q, and users of it", path, name),
				Hint: "--out FILE writes a separate file, --force replaces the other cluster",
			}
		}
		merged, name, err := merge(old, fresh)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		current = name
		return merged, nil
	})
	return current, err
}

// lockTimeout bounds the wait for another process that changes the kubeconfig.
const lockTimeout = 10 * time.Second

// changeFile calls change with the content of a kubeconfig, and writes the result. The file may be
// missing. If the result is nil, the file does not change. changeFile uses kubectl's own lock, a
// file beside the kubeconfig (client-go, tools/clientcmd, lockFile).
func changeFile(path string, change func(old []byte) ([]byte, error)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("kubeconfig: cannot create the directory: %w", err)
	}
	lock := path + ".lock"
	for end := time.Now().Add(lockTimeout); ; {
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			_ = f.Close()
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("kubeconfig: cannot lock: %w", err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("kubeconfig %s: cannot lock: another process changes it; if none does, remove %s", path, lock)
		}
		<-time.After(50 * time.Millisecond)
	}
	defer os.Remove(lock)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kubeconfig: cannot read: %w", err)
	}
	next, err := change(old)
	if err != nil || next == nil {
		return err
	}
	return secretfile.Write(path, next, true)
}

// otherCluster returns the name of a cluster in fresh for which old has another cluster with the
// same name (sameCluster). It returns "" if there is none.
func otherCluster(old, fresh []byte) string {
	have, err := parseMapping(old)
	if err != nil {
		return ""
	}
	want, err := parseMapping(fresh)
	if err != nil {
		return ""
	}
	for _, next := range itemsOf(want, "clusters") {
		name := scalarOf(valueOf(next, "name"))
		for _, present := range itemsOf(have, "clusters") {
			if scalarOf(valueOf(present, "name")) == name && !sameCluster(present, next) {
				return name
			}
		}
	}
	return ""
}

// sameCluster reports whether two entries describe the same cluster: they have a common CA, or no
// CA and the same server.
func sameCluster(a, b *yaml.Node) bool {
	if these, those := clusterCA(a), clusterCA(b); these+those != "" {
		return pki.HaveCommonCert(these, those)
	}
	server := func(item *yaml.Node) string { return scalarOf(valueOf(valueOf(item, "cluster"), "server")) }
	return server(a) == server(b)
}

// clusterCA returns the CAs of a cluster entry, as PEM. It returns "" if there are none.
func clusterCA(item *yaml.Node) string {
	ca, err := base64.StdEncoding.DecodeString(scalarOf(valueOf(valueOf(item, "cluster"), "certificate-authority-data")))
	if err != nil {
		return ""
	}
	return string(ca)
}

// merge merges the clusters, users and contexts of fresh into old, and replaces entries with the
// same name. The current context of fresh becomes the current context. merge edits the nodes of the
// YAML text, so that comments, order and unknown fields do not change.
func merge(old, fresh []byte) (merged []byte, current string, err error) {
	from, err := parseMapping(fresh)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig of the machine: cannot use: %w", err)
	}
	if current = scalarOf(valueOf(from, "current-context")); current == "" {
		return nil, "", errors.New("kubeconfig of the machine: cannot use: it has no current context")
	}
	if strings.TrimSpace(string(old)) == "" {
		return fresh, current, nil
	}
	into, err := parseMapping(old)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: cannot merge: %w; move the file away or use --out", err)
	}
	for _, section := range []string{"clusters", "contexts", "users"} {
		if err := mergeNamed(into, section, valueOf(from, section)); err != nil {
			return nil, "", err
		}
	}
	setValue(into, "current-context", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: current})
	merged, err = yaml.Marshal(into)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: cannot format: %w", err)
	}
	return merged, current, nil
}

// parseMapping parses a YAML text. It returns an error if the text is not a single document with a
// mapping, or if a field occurs twice.
func parseMapping(text []byte) (*yaml.Node, error) {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("it is not a mapping")
	}
	// kubectl reads only the first document. A change would drop the other documents.
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has text after its first document")
	}
	if line := strictyaml.Repeated(&document); line > 0 {
		return nil, fmt.Errorf("line %d: a field occurs twice", line)
	}
	return document.Content[0], nil
}

// mergeNamed merges the list fresh into a section of a kubeconfig. An entry replaces the entry with
// the same name.
func mergeNamed(into *yaml.Node, section string, fresh *yaml.Node) error {
	if fresh == nil || fresh.Kind != yaml.SequenceNode {
		return nil
	}
	list := valueOf(into, section)
	if list == nil || list.Tag == "!!null" {
		list = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		setValue(into, section, list)
	}
	if list.Kind != yaml.SequenceNode {
		return fmt.Errorf("kubeconfig: cannot merge: %s is not a list; move the file away or use --out", section)
	}
	list.Style = 0 // the flow style of "[]" would put all items on the same line
	for _, item := range fresh.Content {
		name, replaced := scalarOf(valueOf(item, "name")), false
		for i, existing := range list.Content {
			if scalarOf(valueOf(existing, "name")) == name {
				list.Content[i], replaced = item, true
			}
		}
		if !replaced {
			list.Content = append(list.Content, item)
		}
	}
	return nil
}

// RemoveCluster removes a cluster, its contexts and their users from a file. The file may be
// missing. own is the PEM text of the CAs of the cluster. An entry with the same name and another
// CA belongs to another cluster, and RemoveCluster does not change the file then.
func RemoveCluster(path, cluster, own string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return changeFile(path, func(old []byte) ([]byte, error) { return removeCluster(old, cluster, own) })
}

// removeCluster returns a kubeconfig without a cluster. It returns nil if there is nothing to
// change, because no cluster with this name has a CA in own.
func removeCluster(old []byte, cluster, own string) ([]byte, error) {
	root, err := parseMapping(old)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: cannot change: %w", err)
	}
	if !slices.ContainsFunc(itemsOf(root, "clusters"), func(item *yaml.Node) bool {
		return scalarOf(valueOf(item, "name")) == cluster && pki.HaveCommonCert(clusterCA(item), own)
	}) {
		return nil, nil
	}
	contexts, users := map[string]bool{}, map[string]bool{}
	for _, item := range itemsOf(root, "contexts") {
		if scalarOf(valueOf(valueOf(item, "context"), "cluster")) == cluster {
			contexts[scalarOf(valueOf(item, "name"))] = true
			users[scalarOf(valueOf(valueOf(item, "context"), "user"))] = true
		}
	}
	// Another cluster may use the same user.
	for _, item := range itemsOf(root, "contexts") {
		if scalarOf(valueOf(valueOf(item, "context"), "cluster")) != cluster {
			delete(users, scalarOf(valueOf(valueOf(item, "context"), "user")))
		}
	}
	for section, gone := range map[string]map[string]bool{"contexts": contexts, "users": users, "clusters": {cluster: true}} {
		var kept []*yaml.Node
		for _, item := range itemsOf(root, section) {
			if !gone[scalarOf(valueOf(item, "name"))] {
				kept = append(kept, item)
			}
		}
		if list := valueOf(root, section); list != nil {
			list.Content = kept
		}
	}
	if current := valueOf(root, "current-context"); contexts[scalarOf(current)] {
		current.Value, current.Style = "", yaml.DoubleQuotedStyle
	}
	text, err := yaml.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: cannot format: %w", err)
	}
	return text, nil
}

// HasCluster reports whether a kubeconfig contains a cluster with this name.
func HasCluster(text []byte, name string) bool {
	root, err := parseMapping(text)
	return err == nil && slices.ContainsFunc(itemsOf(root, "clusters"), func(item *yaml.Node) bool { return scalarOf(valueOf(item, "name")) == name })
}

func itemsOf(mapping *yaml.Node, key string) []*yaml.Node {
	if list := valueOf(mapping, key); list != nil {
		return list.Content
	}
	return nil
}

func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func setValue(mapping *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content[i+1] = value
			return
		}
	}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
}

func scalarOf(node *yaml.Node) string {
	if node == nil || node.Kind != yaml.ScalarNode {
		return ""
	}
	return node.Value
}
