// Package api is the management API of an Orlop OS machine as generated Go code. Its source is
// orlop.proto, which documents the API, apid.proto, the interface between apid and machined, and
// machineobject.proto, the interface between process "node" and machined. Only this file,
// options.go and the tests are written by hand.
//
// To regenerate it, install Debian's protobuf-compiler and run `go generate ./pkg/api` from
// anywhere in the repository.
package api

//go:generate sh -c "go build -o \"$(go env GOCACHE)/orlop-protoc/\" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc && PATH=\"$(go env GOCACHE)/orlop-protoc:$PATH\" protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative orlop.proto apid.proto machineobject.proto"
