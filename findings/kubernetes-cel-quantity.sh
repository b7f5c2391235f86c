#!/bin/bash
# k8s.io/apiserver v0.37.2: of two equal quantities in CEL, one can be an integer and the other not, and sign() is no method.
#
# The package documents that asInteger fails only for an overflow or a loss of precision, and isInteger answers the same question
# (library/quantity.go). Both return what the internal form of the quantity allows, not its value: a decimal point before a binary suffix,
# or decimal places that are zero, make another form. So a rule of a CustomResourceDefinition with asInteger accepts 1536Mi and fails for
# 1.5Gi, because the API server stores a custom resource as the user wrote it.
#
# The package documents the method <Quantity>.sign(), too, but declares a function: sign(<Quantity>).
#
# Seen on 2026-11-29:
#   quantity("1.5Gi") == quantity("1536Mi"): true
#   quantity("1536Mi").isInteger(): true
#   quantity("1.5Gi").isInteger(): false
#   quantity("1.0").isInteger(): false
#   quantity("2Ei").isInteger(): false
#   quantity("1k").sign(): found no matching overload for 'sign' applied to 'kubernetes.Quantity.()'
#   sign(quantity("1k")): 1
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'END'
module finding
go 1.26
require k8s.io/apiserver v0.37.2
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"log"

	"github.com/google/cel-go/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

func main() {
	env, err := cel.NewEnv(library.Quantity())
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range []string{
		`quantity("1.5Gi") == quantity("1536Mi")`, `quantity("1536Mi").isInteger()`, `quantity("1.5Gi").isInteger()`, `quantity("1.0").isInteger()`,
		`quantity("2Ei").isInteger()`, `quantity("1k").sign()`, `sign(quantity("1k"))`,
	} {
		ast, issues := env.Compile(e)
		if issues.Err() != nil {
			fmt.Printf("%s: %s\n", e, issues.Errors()[0].Message)
			continue
		}
		program, err := env.Program(ast)
		if err != nil {
			log.Fatal(err)
		}
		value, _, err := program.Eval(cel.NoVars())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %v\n", e, value)
	}
}
END
export GOFLAGS=-mod=mod
got=$(go run .)
echo "$got"
want='quantity("1.5Gi") == quantity("1536Mi"): true
quantity("1536Mi").isInteger(): true
quantity("1.5Gi").isInteger(): false
quantity("1.0").isInteger(): false
quantity("2Ei").isInteger(): false
quantity("1k").sign(): found no matching overload for '"'sign' applied to 'kubernetes.Quantity.()'"'
sign(quantity("1k")): 1'
[[ $got == "$want" ]] || { echo "the behavior has changed"; exit 1; }
