// Package api is the management API of an Orlop OS machine as Go code: generated from orlop.proto,
// which is where the API is described, and from apid.proto, which only apid speaks. Nothing but
// this file and the test is written by hand.
//
// To generate anew, install Debian's protobuf-compiler and run `go generate ./pkg/api` from
// anywhere in the repository.
package api

//go:generate sh -c "go build -o \"$(go env GOCACHE)/orlop-protoc/\" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc && PATH=\"$(go env GOCACHE)/orlop-protoc:$PATH\" protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative orlop.proto apid.proto"
