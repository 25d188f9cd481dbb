"""x"""
import sys
sys.stdout.write("ready\n"); sys.stdout.flush()
sys.stdin.readline()
sys.stdin.read()
