package integration

import (
	"bytes"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"
)

// leaksVerb checks whether files contain a secret of a YAML file. A secret is a private key in PEM,
// or a field whose name ends in "key".
func (s *story) leaksVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 2, -1, "[!] leaks SECRETS FILE...")
	var secrets any
	ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(args[0])), &secrets))
	traces := map[string]string{}
	tracesOf("", secrets, traces)
	if len(traces) == 0 {
		ts.Fatalf("leaks: %s contains no secret to search for", args[0])
	}
	var found []string
	size := 0
	for _, name := range args[1:] {
		text, err := os.ReadFile(ts.MkAbs(name))
		ts.Check(err)
		size += len(text)
		for trace, of := range traces {
			if bytes.Contains(text, []byte(trace)) {
				found = append(found, fmt.Sprintf("%s contains a part of the secret %s", name, of))
			}
		}
	}
	s.note("%d parts of secrets, looked for in %d bytes: %d found", len(traces), size, len(found))
	if neg && len(found) > 0 {
		ts.Fatalf("%s", strings.Join(found, "\n"))
	}
	if !neg && len(found) == 0 {
		ts.Fatalf("leaks: no file contains a part of a secret")
	}
}

// shortest is the minimum length of a trace, in bytes. A shorter text can occur by chance.
const shortest = 20

// tracesOf adds the texts that identify the secrets in value to traces, with the path of each
// secret. For a PEM private key these are its lines and the key in hexadecimal. For any other field
// whose name ends in "key", the text is the value of the field.
func tracesOf(path string, value any, traces map[string]string) {
	switch v := value.(type) {
	case map[string]any:
		for name, part := range v {
			tracesOf(path+"."+name, part, traces)
		}
	case []any: // the items have the path of the list
		for _, part := range v {
			tracesOf(path, part, traces)
		}
	case string:
		block, _ := pem.Decode([]byte(v))
		switch {
		case block != nil && strings.Contains(block.Type, "PRIVATE KEY"):
			for line := range strings.Lines(v) {
				if line = strings.TrimSpace(line); len(line) >= shortest && !strings.HasPrefix(line, "-----") {
					traces[line] = path
				}
			}
			traces[hex.EncodeToString(block.Bytes)] = path
		case block == nil && strings.HasSuffix(strings.ToLower(path), "key") && len(v) >= shortest:
			traces[v] = path
		}
	}
}

// operatorsVerb writes the patch with the list of operator CAs that a machine trusts.
func (s *story) operatorsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, -1, "operators PATCH CA...")
	var list []string
	for _, ca := range args[1:] {
		list = append(list, ts.ReadFile(ca))
	}
	patch, err := yaml.Marshal(map[string]any{"kind": "Machine", "spec": map[string]any{"trust": map[string]any{"operatorCAs": list}}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), patch, 0o644))
}
