package orlop

import (
	"go/ast"
	"testing"
)

// lenient are the files that may decode YAML without package strictyaml. The text of an entry says
// why no value of an operator's document is lost.
var lenient = map[string]string{
	"imager/profile.go":                         "yaml.v3 with KnownFields, which rejects fields that occur twice, and a check for a second document",
	"orchestrator/addons/object.go":             "the schema belongs to Kubernetes; strictyaml.Repeated finds fields that occur twice",
	"orlopctl/clusterfile/file.go":              "answers of machines, and documents that this program has written; the file of an operator is decoded by strictyaml",
	"orlopctl/kubeconfig/kubeconfig.go":         "the schema belongs to kubectl; strictyaml.Repeated finds fields that occur twice",
	"orlopctl/rotation/ca.go":                   "an answer of a machine",
	"orlopctl/rotation/roles.go":                "an answer of a machine",
	"pkg/config/lookalike.go":                   "only guesses the type of a file",
	"pkg/config/merge.go":                       "checkPlain rejects fields that occur twice, and the result is parsed as a configuration",
	"pkg/config/parse.go":                       "the decoder of the configuration itself",
	"pkg/config/reference.go":                   "a file of this repository",
	"pkg/config/schema/schema.go":               "a generated text",
	"pkg/machineapi/definitions/definitions.go": "files of this repository, decoded without unknown fields",
	"pkg/config/validate_addon.go":              "the schema belongs to Kubernetes; duplicateKey finds fields that occur twice",
}

// TestDocumentsAreStrict checks that package strictyaml decodes each document of an operator.
// Another decoder would ignore unknown fields, and drop all but a single value of a repeated field.
func TestDocumentsAreStrict(t *testing.T) {
	used := map[string]bool{}
	for _, f := range files(t) {
		if f.test || f.generated || match("test/...", f.pkg) || f.pkg == "pkg/strictyaml" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := call.X.(*ast.Ident)
			if !ok || from.Name != "yaml" && from.Name != "goyaml" && from.Name != "sigsyaml" {
				return true
			}
			switch call.Sel.Name {
			case "Unmarshal", "UnmarshalStrict", "YAMLToJSON", "NewDecoder":
				if used[f.path] = true; lenient[f.path] == "" {
					t.Errorf("%s: decodes YAML by %s.%s; use package strictyaml", positions.Position(n.Pos()), from.Name, call.Sel.Name)
				}
			}
			return true
		})
	}
	for path := range lenient {
		if !used[path] {
			t.Errorf("%s decodes no YAML any more; remove its entry", path)
		}
	}
}
